"""Programs that run the library on real input and measure it. Not part of the installed package."""
