"""What `tandem doctor` computes: the state of this box, how many slots it holds, how clients are set up."""
