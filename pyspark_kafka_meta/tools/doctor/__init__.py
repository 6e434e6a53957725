"""What `kafkameta doctor` looks at, a module each: this machine, brokers, topics, writes, executors."""
