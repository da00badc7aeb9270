"""A pytest file as a Bazel test."""

load("@rules_python//python:defs.bzl", "py_test")

def pytest_test(name, data = [], **kwargs):
    """Runs NAME.py by pytest, in the interpreter's own environment.

    Args:
      name: of the target; NAME.py is the file.
      data: files that it reads, programs that it starts.
      **kwargs: of py_test.
    """
    py_test(
        name = name,
        srcs = [name + ".py", "//tests:run_pytest.py"],
        args = [native.package_name() + "/" + name + ".py"],
        data = data + ["//:documents"],
        main = "//tests:run_pytest.py",
        **kwargs
    )
