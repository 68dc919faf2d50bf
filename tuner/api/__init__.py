"""The Python interface behind `import tuner`: run studies, read them, rank them."""
