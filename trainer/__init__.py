"""The training kernel: runs one trial on real ranks and reports what it measured."""
