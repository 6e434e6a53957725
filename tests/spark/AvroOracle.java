import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.avro.Resolver;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.ResolvingDecoder;
import org.apache.avro.util.Utf8;

/**
 * Reads Avro values as Apache Avro does, and says which type of Spark a schema has.
 *
 * Each line of the input is JSON: {"writer": text, "reader": text, "values": [base64]} or {"schema": text}. Its answer, a
 * line of the output, is {"refused": flag, "values": [[value, bytes left] or {"error": text}]} or {"type": JSON,
 * "nullable": flag} or {"error": text}. Bytes, strings and the bits of floats and doubles are hexadecimal, records are
 * lists, maps are lists of pairs, and a value of a union is a list of its branch and the value.
 */
public class AvroOracle {
  static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] arguments) throws IOException {
    var input = new BufferedReader(new InputStreamReader(System.in));
    var output = new PrintWriter(System.out);
    for (String line; (line = input.readLine()) != null;) {
      output.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
    }
    output.flush();
  }

  static Map<String, Object> answer(JsonNode question) {
    try {
      return question.has("schema") ? sparkType(question) : resolved(question);
    } catch (Exception e) {
      return Map.of("error", e.toString());
    }
  }

  static Map<String, Object> sparkType(JsonNode question) {
    var type = org.apache.spark.sql.avro.SchemaConverters.toSqlType(schema(question, "schema"));
    return Map.of("type", type.dataType().json(), "nullable", type.nullable());
  }

  static Map<String, Object> resolved(JsonNode question) {
    Schema writer = schema(question, "writer"), reader = schema(question, "reader");
    boolean refused = isError(Resolver.resolve(writer, reader));
    var datumReader = new OracleReader(writer, reader);
    var values = new ArrayList<Object>();
    for (JsonNode value : question.get("values")) {
      values.add(value(datumReader, Base64.getDecoder().decode(value.textValue())));
    }
    return Map.of("refused", refused, "values", values);
  }

  static Schema schema(JsonNode question, String name) {
    return new Schema.Parser().parse(question.get(name).textValue());
  }

  /** Whether no value, other than of empty arrays and maps, can be read. */
  static boolean isError(Resolver.Action action) {
    if (action instanceof Resolver.Container container) {
      return isError(container.elementAction);
    } else if (action instanceof Resolver.ReaderUnion union) {
      return isError(union.actualAction);
    } else if (action instanceof Resolver.WriterUnion union) {
      return Stream.of(union.actions).allMatch(AvroOracle::isError);
    } else if (action instanceof Resolver.RecordAdjust record) {
      return Stream.of(record.fieldActions).anyMatch(AvroOracle::isError);
    }
    return action instanceof Resolver.ErrorAction;
  }

  static Object value(OracleReader datumReader, byte[] encoded) {
    BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(encoded, null);
    try {
      Object value = datumReader.read(null, decoder);
      return Arrays.asList(plain(value), decoder.inputStream().available());
    } catch (Exception | OutOfMemoryError e) {
      return Map.of("error", e.toString());
    }
  }

  static Object plain(Object value) {
    if (value instanceof Utf8 text) {
      return HexFormat.of().formatHex(text.getBytes(), 0, text.getByteLength());
    } else if (value instanceof ByteBuffer bytes) {
      return HexFormat.of().formatHex(bytes.array(), bytes.position(), bytes.limit());
    } else if (value instanceof GenericData.Fixed fixed) {
      return HexFormat.of().formatHex(fixed.bytes());
    } else if (value instanceof GenericData.EnumSymbol symbol) {
      return symbol.toString();
    } else if (value instanceof Float || value instanceof Double) {
      return Long.toHexString(Double.doubleToLongBits(((Number) value).doubleValue()));
    } else if (value instanceof IndexedRecord record) {
      return record.getSchema().getFields().stream().map(field -> plain(record.get(field.pos()))).toList();
    } else if (value instanceof List<?> list) {
      return list.stream().map(AvroOracle::plain).toList();
    }
    return value;
  }

  /** Keeps what the usual values do not have: the branch of a union, and the entries of a map with their order. */
  static class OracleReader extends GenericDatumReader<Object> {
    OracleReader(Schema writer, Schema reader) {
      super(writer, reader, new GenericData().setFastReaderEnabled(false));
    }

    @Override
    protected Object readWithoutConversion(Object old, Schema expected, ResolvingDecoder in) throws IOException {
      if (expected.getType() == Schema.Type.UNION) {
        int branch = in.readIndex();
        return Arrays.asList(branch, read(null, expected.getTypes().get(branch), in));
      }
      return super.readWithoutConversion(null, expected, in);
    }

    @Override
    protected Object newMap(Object old, int size) {
      return new ArrayList<>();
    }

    @Override
    @SuppressWarnings("unchecked")
    protected void addToMap(Object map, Object key, Object value) {
      ((List<Object>) map).add(Arrays.asList(key, value));
    }
  }
}
