"""Stand-in for Bazel 4 offline: forwards to the rules that it has built in."""

py_library = native.py_library
py_binary = native.py_binary
py_test = native.py_test
