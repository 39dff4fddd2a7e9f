"""What holds for every test: none of them goes by the clock of the machine."""

from hypothesis import settings

# By default an example may take 0.2 s. That is plenty, until others keep the machine busy.
settings.register_profile("on any machine", deadline=None)
settings.load_profile("on any machine")
