"""The solver for problems with thousands of variables and memory rows."""
