"""What the pages promise of an installation, in environments that have nothing but what `pip` installs."""
