"""Tests in a real JupyterLab. A package, so that server and browser end with its last test: see conftest."""
