"""Settings for all tests."""

from hypothesis import settings

# a busy machine makes single examples slow; the timeout of pytest guards against real hangs
settings.register_profile("tuner", deadline=None)
settings.load_profile("tuner")
