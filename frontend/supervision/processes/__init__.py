"""The supervisor's children: started, standing by, silent, out of memory. Open child.py first."""
