"""The engine: opens a model folder, runs the model, keeps conversations. No Qt anywhere below here.

Importing this package, or anything that inspects a folder, does not import torch: that costs seconds, and the
window must be up before it.
"""
