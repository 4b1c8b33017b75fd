"""The kernels of recurrent layers. Open state_rows.py first."""
