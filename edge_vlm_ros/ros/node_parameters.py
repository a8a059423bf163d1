"""The parameters of a running node: declared from the table, checked, explained when refused."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from rcl_interfaces.msg import SetParametersResult
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter

from .parameters import (
    NODE_PARAMETERS,
    STREAM_PARAMETERS,
    Change,
    ParameterSpec,
    change_problem,
    find_spec,
    value_problem,
)


class NodeParameters:
    """Declares all parameters of ``node`` and refuses changes with a reason.

    A wrong value given at start does not stop the node: it is declared with its default and kept
    in ``problems`` (name -> what is wrong) until a good value is set.
    """

    def __init__(self, node: Node, configured: Callable[[], bool]) -> None:
        self._node = node
        self._configured = configured
        self.problems: dict[str, str] = {}
        # rclpy has no public way to see which values were given at start.
        self._given: dict[str, Parameter] = node._parameter_overrides
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(self._after_set)
        for spec in NODE_PARAMETERS:
            self._declare(spec.name, spec)
        self._declare_streams()

    def get(self, name: str) -> Any:
        return self._node.get_parameter(name).value

    def stream_names(self) -> tuple[str, ...]:
        return tuple(self.get("streams"))

    def node_values(self) -> dict[str, Any]:
        """All values that are not a stream's, by name."""
        return {spec.name: self.get(spec.name) for spec in NODE_PARAMETERS}

    def stream_values(self, stream: str) -> dict[str, Any]:
        """The values of one stream, by the name after the stream's."""
        return {spec.name: self.get(f"{stream}.{spec.name}") for spec in STREAM_PARAMETERS}

    def unused(self) -> list[str]:
        """Sentences about given parameters that nothing reads, with the likely right name."""
        known = list(self._node._parameters)
        sentences, streams = [], set()
        for name in sorted(self._given):
            if self._node.has_parameter(name) or name.startswith("qos_overrides."):
                continue
            if find_spec(name) is not None:
                streams.add(name.partition(".")[0])
                continue
            close = get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            sentences.append(f"unknown parameter {name} is ignored{hint}")
        names = ", ".join(self.stream_names())
        return sentences + [
            f"parameters of {stream} are not used: it is not one of the streams ({names})"
            for stream in sorted(streams)
        ]

    def _declare(self, name: str, spec: ParameterSpec) -> None:
        given = self._given.get(name)
        if given is not None and isinstance(spec.default, float) and type(given.value) is int:
            # `max_fps: 5` in a file is an integer; everybody means 5.0.
            self._given[name] = Parameter(name, value=float(given.value))
        try:
            self._node.declare_parameter(name, spec.default, spec.descriptor())
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            reason = _reason(error)
            self._node.get_logger().error(f"parameter {name} as given is not used: {reason}")
            self._node.declare_parameter(
                name, spec.default, spec.descriptor(), ignore_override=True
            )
            restart = " Correct it and restart the node." if spec.change is Change.START else ""
            self.problems[name] = f"{reason}.{restart}"

    def _declare_streams(self) -> None:
        for stream in self.stream_names():
            for spec in STREAM_PARAMETERS:
                name = f"{stream}.{spec.name}"
                if not self._node.has_parameter(name):
                    self._declare(name, spec)

    def _check(self, parameters: list[Parameter]) -> SetParametersResult:
        for parameter in parameters:
            # Declaring a parameter comes through here too: it is then not there yet.
            declared = self._node.has_parameter(parameter.name)
            problem = value_problem(parameter.name, parameter.value) or (
                change_problem(parameter.name, self._configured()) if declared else None
            )
            if problem is not None:
                return SetParametersResult(successful=False, reason=problem)
        return SetParametersResult(successful=True)

    def _after_set(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            self.problems.pop(parameter.name, None)
        if any(parameter.name == "streams" for parameter in parameters):
            self._declare_streams()


def _reason(error: Exception) -> str:
    """What our own check said, without the words that rclpy puts around it."""
    text = str(error)
    _, marked, reason = text.partition("Reason: ")
    return reason.rpartition(":")[0] if marked else text
