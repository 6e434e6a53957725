"""What `kafkameta doctor` looks at, a module each: this machine, the brokers, the topics, the executors."""
