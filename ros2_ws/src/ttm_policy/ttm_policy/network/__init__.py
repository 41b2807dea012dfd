"""What runs on the thread of the network: loading, the language model, and the calls themselves."""
