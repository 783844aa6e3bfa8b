"""Native host programs: the steps between kernels as C++, and models that run without Python."""
