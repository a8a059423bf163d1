"""Questions about what a robot's cameras saw, answered from retained contexts."""

from pkgutil import extend_path

# The interfaces (action, msg, srv) are generated into a package of this name at install time. When
# the code runs from the source tree, they are found in that other directory of the same package.
__path__ = extend_path(__path__, __name__)

__version__ = "0.1.0"
