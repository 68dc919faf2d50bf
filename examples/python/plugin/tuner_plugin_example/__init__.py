"""Parts that this distribution adds to the tuner, found through its entry points."""

from tuner_plugin_example.frugal import FrugalSearcher
from tuner_plugin_example.shared_network import SharedNetworkLauncher
from tuner_plugin_example.shell import ShellExporter

__all__ = ["FrugalSearcher", "SharedNetworkLauncher", "ShellExporter"]
