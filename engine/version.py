"""The one place that holds the program's version."""

VERSION = "0.1.0"
