"""What a run draws its samples from, planned and indexed on a CPU before any rank starts."""
