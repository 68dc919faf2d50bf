"""The oracle: every parallel configuration against the single process, on real ranks.

`products` makes the list of configurations from the knobs of the space, `rank` is what each rank of
one configuration runs, `runner` starts ranks from a warm fork server and gathers their verdicts.
Command line: `python -m trainer.oracle --help`.
"""
