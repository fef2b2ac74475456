"""The version of the package, read by `setup.cfg` and by `rnnop` itself."""

__version__ = "0.1.0"
