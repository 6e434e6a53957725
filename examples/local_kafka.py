"""Start the cluster of docker-compose.yml without Docker: real Apache Kafka for the other examples.

    python examples/local_kafka.py                    # needs Java 17; downloads Kafka (45 MB) the first time

It runs until you type `end` or press Ctrl-C, and then deletes its topics. Type `kill 3` while another example reads:
the readers must find new leaders. You will see:

    brokers 2, 3, 4 at 127.0.0.1:19092,127.0.0.1:29092,127.0.0.1:39092
    ten topics, topic-0 to topic-9; type: kill 3, restore, end
    broker 3 is dead
    all brokers are alive
"""

from __future__ import annotations

import argparse
import signal
import sys

from pyspark_kafka_meta.testing import ClusterError, LocalKafka


def obey(kafka: LocalKafka, command: str) -> None:
    try:
        match command.split():
            case ["kill", number] if number.isdigit():
                kafka.kill(int(number))
                print(f"broker {number} is dead", flush=True)
            case ["restore"]:
                kafka.restore()
                print("all brokers are alive", flush=True)
            case [*_]:
                print("type: kill 3, restore, end", flush=True)
    except ClusterError as error:  # an unknown or dead broker
        print(error, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--any-ports", action="store_true", help="free ports instead of 19092, 29092 and 39092")
    options = parser.parse_args()
    try:
        with LocalKafka(ports=None if options.any_ports else "standard") as kafka:
            for number in range(10):
                kafka.create_topic(f"topic-{number}", partitions=2)
            print(f"brokers {', '.join(map(str, kafka.broker_ids))} at {kafka.bootstrap_servers}")
            if options.any_ports:
                print("instead of localhost:19092, give examples and commands")
                print(f"    --bootstrap-servers {kafka.bootstrap_servers}")
                print("and Python")
                print(f'    kafka = {{"kafka.bootstrap.servers": "{kafka.bootstrap_servers}"}}')
            print("ten topics, topic-0 to topic-9; type: kill 3, restore, end", flush=True)
            for line in sys.stdin:
                if line.strip() == "end":
                    return
                obey(kafka, line)
            signal.pause()  # no terminal: until Ctrl-C or SIGTERM
    except ClusterError as error:
        raise SystemExit(str(error).replace("leave out `ports`", "add --any-ports")) from None
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
