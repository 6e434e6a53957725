"""Types that every Protobuf library or serializer has, so that registries do not keep their files.

Source: `google/protobuf/*.proto`, `google/type/*.proto`, and `confluent/type/*.proto`, which Confluent's serializers do
not register as references (`skip.known.types`). Kafka Connect's `ProtobufConverter` writes dates, times and decimals
with them.
"""

TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
DATE, DECIMAL, CONFLUENT_DECIMAL = "google.type.Date", "google.type.Decimal", "confluent.type.Decimal"
STRUCT, VALUE, LIST_VALUE = "google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"
JSON_TYPES = (STRUCT, VALUE, LIST_VALUE)
"""Their messages are JSON, and contain one another."""
DECIMAL_DIGITS = 38, 18
"""Precision and scale of decimals whose field does not say them; each message has a scale of its own."""

MESSAGES = """
google.protobuf.Timestamp: int64 seconds, int32 nanos
google.protobuf.Duration: int64 seconds, int32 nanos
google.protobuf.DoubleValue: double value
google.protobuf.FloatValue: float value
google.protobuf.Int64Value: int64 value
google.protobuf.UInt64Value: uint64 value
google.protobuf.Int32Value: int32 value
google.protobuf.UInt32Value: uint32 value
google.protobuf.BoolValue: bool value
google.protobuf.StringValue: string value
google.protobuf.BytesValue: bytes value
google.protobuf.Any: string type_url, bytes value
google.protobuf.FieldMask: repeated string paths
google.protobuf.Empty:
google.protobuf.SourceContext: string file_name
google.protobuf.Struct: bytes json
google.protobuf.Value: bytes json
google.protobuf.ListValue: bytes json
google.type.Color: float red, float green, float blue, google.protobuf.FloatValue alpha
google.type.Date: int32 year, int32 month, int32 day
google.type.DateTime: int32 year, int32 month, int32 day, int32 hours, int32 minutes, int32 seconds, int32 nanos, \
oneof google.protobuf.Duration utc_offset, oneof google.type.TimeZone time_zone
google.type.TimeZone: string id, string version
google.type.Decimal: string value
google.type.Expr: string expression, string title, string description, string location
google.type.Fraction: int64 numerator, int64 denominator
google.type.Interval: google.protobuf.Timestamp start_time, google.protobuf.Timestamp end_time
google.type.LatLng: double latitude, double longitude
google.type.LocalizedText: string text, string language_code
google.type.Money: string currency_code, int64 units, int32 nanos
google.type.PhoneNumber: oneof string e164_number, oneof google.type.PhoneNumber.ShortCode short_code, string extension
google.type.PhoneNumber.ShortCode: string region_code, string number
google.type.PostalAddress: int32 revision, string region_code, string language_code, string postal_code, \
string sorting_code, string administrative_area, string locality, string sublocality, repeated string address_lines, \
repeated string recipients, string organization
google.type.Quaternion: double x, double y, double z, double w
google.type.TimeOfDay: int32 hours, int32 minutes, int32 seconds, int32 nanos
confluent.type.Decimal: bytes value, uint32 precision, int32 scale
confluent.type.Variant: bytes metadata, bytes value
"""
"""Fields in the order of their numbers, from 1. Of `JSON_TYPES`, which have no fields as columns, there is one."""

ENUMS = """
google.protobuf.NullValue: NULL_VALUE
google.type.CalendarPeriod: CALENDAR_PERIOD_UNSPECIFIED DAY WEEK FORTNIGHT MONTH QUARTER HALF YEAR
google.type.DayOfWeek: DAY_OF_WEEK_UNSPECIFIED MONDAY TUESDAY WEDNESDAY THURSDAY FRIDAY SATURDAY SUNDAY
google.type.Month: MONTH_UNSPECIFIED JANUARY FEBRUARY MARCH APRIL MAY JUNE JULY AUGUST SEPTEMBER OCTOBER NOVEMBER \
DECEMBER
"""
"""Names in the order of their numbers, from 0."""
