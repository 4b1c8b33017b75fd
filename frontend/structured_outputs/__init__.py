"""From the form that a request asks for to the grammar that a worker holds its output to."""
