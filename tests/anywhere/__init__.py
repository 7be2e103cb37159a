"""What does not depend on the machine: environments in which the service starts, and machines for the tests.

make test-anywhere     both, for an hour or two: kernels of BLAS, users, folders, umasks, limits
"""
