"""The kernels of recurrent layers. Open scans.py first."""
