"""Exporters: a configuration in the words of a trainer.

One file for each trainer, with one class behind `tuner.ports.Exporter` and one line in
`tuner.registry.EXPORTERS`. `base` holds the law that all of them keep: every knob of
`ParallelConfig` either goes somewhere, or all but its neutral value is refused.
"""
