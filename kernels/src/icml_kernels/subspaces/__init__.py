"""What subspace eigensolvers do between factorizations: orthogonalise, sum moments, sparse products."""
