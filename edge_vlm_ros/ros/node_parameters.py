"""The parameters of a running node: declared from the table, checked, explained when refused."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from rcl_interfaces.msg import SetParametersResult
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node
from rclpy.parameter import Parameter

from .parameter_checks import (
    POLICY,
    change_problem,
    engine_of,
    find_spec,
    moved_parameter,
    name_hint,
    policy_problem,
    value_problem,
)
from .parameters import (
    ENGINE_PARAMETERS,
    NODE_PARAMETERS,
    STREAM_PARAMETERS,
    Change,
    ParameterSpec,
)

_INGEST_ENGINE = ".ingest_engine"
_OBJECTIVE = "planning.objective"


class NodeParameters:
    """Declares all parameters of ``node`` and refuses changes with a reason.

    A wrong value given at start does not stop the node: it is declared with its default and kept
    in ``problems`` (name -> what is wrong) until a good value is set. ``on_ingest_engine`` is
    called with stream and engine when a stream's ingest_engine is changed while ``configured``,
    ``on_policy`` when policy or objective of planning are.
    """

    def __init__(
        self,
        node: Node,
        configured: Callable[[], bool],
        on_ingest_engine: Callable[[str, str], None],
        on_policy: Callable[[], None],
    ) -> None:
        self._node = node
        self._configured = configured
        self._on_ingest_engine = on_ingest_engine
        self._on_policy = on_policy
        self.problems: dict[str, str] = {}
        # rclpy has no public way to see which values were given at start.
        self._given: dict[str, Parameter] = node._parameter_overrides
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(self._after_set)
        for spec in NODE_PARAMETERS:
            self._declare(spec.name, spec)
        self._declare_all("engines")
        self._declare_all("streams")

    def get(self, name: str) -> Any:
        return self._node.get_parameter(name).value

    def stream_names(self) -> tuple[str, ...]:
        return tuple(self.get("streams"))

    def engine_names(self) -> tuple[str, ...]:
        return tuple(self.get("engines"))

    def node_values(self) -> dict[str, Any]:
        """All values that are not a stream's or an engine's, by name."""
        return {spec.name: self.get(spec.name) for spec in NODE_PARAMETERS}

    def stream_values(self, stream: str) -> dict[str, Any]:
        """The values of one stream, by the name after the stream's."""
        return {spec.name: self.get(f"{stream}.{spec.name}") for spec in STREAM_PARAMETERS}

    def engine_values(self, engine: str) -> dict[str, Any]:
        """The values of one engine, by the name after the engine's."""
        return {spec.name: self.get(f"engine.{engine}.{spec.name}") for spec in ENGINE_PARAMETERS}

    def unused(self) -> list[str]:
        """Sentences about given parameters that nothing reads, with the likely right name."""
        sentences = []
        strangers: set[tuple[str, str]] = set()
        for name in sorted(self._given):
            if self._node.has_parameter(name) or name.startswith("qos_overrides."):
                continue
            if (sentence := moved_parameter(name, self.engine_names())) is not None:
                sentences.append(sentence)
            elif (engine := engine_of(name)) is not None and engine not in self.engine_names():
                strangers.add(("engine", engine))
            elif find_spec(name) is not None:
                strangers.add(("stream", name.partition(".")[0]))
            else:
                hint = name_hint(name, self._node._parameters)
                sentences.append(f"unknown parameter {name} is ignored{hint}")
        return sentences + [self._of_stranger(kind, owner) for kind, owner in sorted(strangers)]

    def _of_stranger(self, kind: str, owner: str) -> str:
        names = self.engine_names() if kind == "engine" else self.stream_names()
        close = get_close_matches(owner, names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return (
            f"parameters of {kind} {owner} are not used: it is not one of the {kind}s "
            f"({', '.join(names)}){hint}"
        )

    def _declare(self, name: str, spec: ParameterSpec) -> None:
        given = self._given.get(name)
        if given is not None and given.value is None and spec.default == []:
            del self._given[name]  # how an empty list in a file arrives
        elif given is not None and isinstance(spec.default, float) and type(given.value) is int:
            # `max_fps: 5` in a file is an integer; everybody means 5.0.
            self._given[name] = Parameter(name, value=float(given.value))
        elif given is not None and given.value is None:
            self._decline(name, spec, f"{name} is empty: give it a value")
            return
        try:
            self._node.declare_parameter(name, spec.default, spec.descriptor())
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            self._decline(name, spec, _reason(error))

    def _decline(self, name: str, spec: ParameterSpec, reason: str) -> None:
        self._node.get_logger().error(f"parameter {name} as given is not used: {reason}")
        self._node.declare_parameter(name, spec.default, spec.descriptor(), ignore_override=True)
        restart = " Correct it and restart the node." if spec.change is Change.START else ""
        self.problems[name] = f"{reason}.{restart}"

    def _declare_all(self, names: str) -> None:
        """The parameters of all ``engines`` or ``streams`` that are not there yet."""
        prefix, specs = (
            ("engine.", ENGINE_PARAMETERS)
            if names == "engines"
            else (
                "",
                STREAM_PARAMETERS,
            )
        )
        for owner in self.get(names):
            for spec in specs:
                name = f"{prefix}{owner}.{spec.name}"
                if not self._node.has_parameter(name):
                    self._declare(name, spec)

    def _check(self, parameters: list[Parameter]) -> SetParametersResult:
        for parameter in parameters:
            # Declaring a parameter comes through here too: it is then not there yet.
            declared = self._node.has_parameter(parameter.name)
            problem = value_problem(parameter.name, parameter.value) or (
                self._change_problem(parameter) if declared else None
            )
            if problem is not None:
                return SetParametersResult(successful=False, reason=problem)
        return SetParametersResult(successful=True)

    def _change_problem(self, parameter: Parameter) -> str | None:
        configured = self._configured()
        if configured and parameter.name.endswith(_INGEST_ENGINE):
            names = self.engine_names()
            if parameter.value not in ("", *names):
                there = ", ".join(names)
                return f"{parameter.name}: no engine {parameter.value!r}; there are: {there}"
        if configured and parameter.name == POLICY:
            objective = self.get(_OBJECTIVE)
            return policy_problem(
                parameter.value, self.engine_names(), self.stream_names(), objective
            )
        return change_problem(parameter.name, configured)

    def _after_set(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            self.problems.pop(parameter.name, None)
        for parameter in parameters:
            if parameter.name in ("streams", "engines"):
                self._declare_all(parameter.name)
            elif parameter.name.endswith(_INGEST_ENGINE) and self._configured():
                stream = parameter.name.removesuffix(_INGEST_ENGINE)
                self._on_ingest_engine(stream, parameter.value)
        if self._configured() and any(p.name in (POLICY, _OBJECTIVE) for p in parameters):
            self._on_policy()


def _reason(error: Exception) -> str:
    """What our own check said, without the words that rclpy puts around it."""
    text = str(error)
    _, marked, reason = text.partition("Reason: ")
    return reason.rpartition(":")[0] if marked else text
