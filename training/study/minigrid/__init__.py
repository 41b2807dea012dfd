"""What every study of MiniGrid levels shares: demonstrations, policy, cloning, roll-outs, results."""
