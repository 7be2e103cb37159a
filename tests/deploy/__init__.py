"""Tests of what is under deploy/: the image, compose, the Helm chart."""
