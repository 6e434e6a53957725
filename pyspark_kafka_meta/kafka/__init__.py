"""A Kafka client: it knows neither Spark nor what becomes of records. Other packages use `client`."""
