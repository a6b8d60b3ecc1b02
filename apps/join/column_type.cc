#include "join/column_type.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

namespace verbena::join_app {
namespace {

struct Known {
  std::string_view format;  // of one letter: the whole format; else what it begins with
  std::string_view name;
  Layout layout;
  uint32_t width_bytes;
};
constexpr Known kKnown[] = {
    {"b", "bool", Layout::kBool, 0},
    {"c", "int8", Layout::kFixed, 1},
    {"C", "uint8", Layout::kFixed, 1},
    {"s", "int16", Layout::kFixed, 2},
    {"S", "uint16", Layout::kFixed, 2},
    {"i", "int32", Layout::kFixed, 4},
    {"I", "uint32", Layout::kFixed, 4},
    {"l", "int64", Layout::kFixed, 8},
    {"L", "uint64", Layout::kFixed, 8},
    {"e", "float16", Layout::kFixed, 2},
    {"f", "float32", Layout::kFixed, 4},
    {"g", "float64", Layout::kFixed, 8},
    {"z", "binary", Layout::kOffset32, 0},
    {"Z", "large_binary", Layout::kOffset64, 0},
    {"u", "string", Layout::kOffset32, 0},
    {"U", "large_string", Layout::kOffset64, 0},
    {"tdD", "date32", Layout::kFixed, 4},
    {"tdm", "date64", Layout::kFixed, 8},
    {"tts", "time32[s]", Layout::kFixed, 4},
    {"ttm", "time32[ms]", Layout::kFixed, 4},
    {"ttu", "time64[us]", Layout::kFixed, 8},
    {"ttn", "time64[ns]", Layout::kFixed, 8},
    {"tDs", "duration[s]", Layout::kFixed, 8},
    {"tDm", "duration[ms]", Layout::kFixed, 8},
    {"tDu", "duration[us]", Layout::kFixed, 8},
    {"tDn", "duration[ns]", Layout::kFixed, 8},
    {"tiM", "month_interval", Layout::kFixed, 4},
    {"tiD", "day_time_interval", Layout::kFixed, 8},
    {"tin", "month_day_nano_interval", Layout::kFixed, 16},
};

const Known* find_known(std::string_view format) {
  for (const Known& known : kKnown) {
    if (format == known.format) return &known;
  }
  return nullptr;
}

// "ts" and the unit, and after a colon the time zone.
bool is_timestamp(std::string_view format) {
  return format.size() >= 4 && format.starts_with("ts") && format[3] == ':' &&
         std::string_view("smun").find(format[2]) != std::string_view::npos;
}

// The number that a format ends with; 0 if there is none above 0.
uint32_t last_number(std::string_view text) {
  uint32_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() ? number : 0;
}

// The bytes of "w:N" and of decimals "d:PRECISION,SCALE[,BITS]"; 0: another type, or a wrong one.
uint32_t parsed_width(std::string_view format) {
  if (format.starts_with("w:")) return last_number(format.substr(2));
  if (!format.starts_with("d:")) return 0;
  const size_t scale = format.find(',');
  if (scale == std::string_view::npos) return 0;
  const size_t bits = format.find(',', scale + 1);
  if (bits == std::string_view::npos) return 16;
  const uint32_t number = last_number(format.substr(bits + 1));
  return number == 32 || number == 64 || number == 128 || number == 256 ? number / 8 : 0;
}

// Decimals of 128 bits may say so, or not.
std::string canonical(std::string_view format) {
  constexpr std::string_view kBits = ",128";
  const bool says_bits =
      format.starts_with("d:") && format.ends_with(kBits) && std::ranges::count(format, ',') == 2;
  return std::string(format.substr(0, format.size() - (says_bits ? kBits.size() : 0)));
}

std::string remedy(std::string_view format) {
  if (format.starts_with("vu")) return "cast it to string";
  if (format.starts_with("vz")) return "cast it to binary";
  if (format == "+r") return "decode it first";
  if (format.starts_with('+')) return "leave it out, or flatten it into columns of its own";
  return "leave it out, or cast it to another type";
}

}  // namespace

Result<ColumnType> column_type(const ArrowSchema& schema, const std::string& table) {
  const std::string name = schema.name != nullptr ? schema.name : "";
  if (schema.format == nullptr) {
    return Status(StatusCode::kProtocolViolation, "column '" + name + "' of the " + table +
                                                      " table has no format; mend its producer");
  }
  ColumnType type;
  type.format = canonical(schema.format);
  const auto refuse = [&](const std::string& what, const std::string& remedy) {
    return Status(StatusCode::kInvalidArgument, "column '" + name + "' of the " + table +
                                                    " table is " + what +
                                                    ", which the join cannot carry; " + remedy);
  };
  if (schema.dictionary != nullptr) {
    return refuse(
        "a dictionary of " +
            type_name(schema.dictionary->format != nullptr ? schema.dictionary->format : "?"),
        "decode it first");
  }
  if (const Known* const known = find_known(type.format)) {
    type.layout = known->layout;
    type.width_bytes = known->width_bytes;
    type.floating_point = known->name.starts_with("float");
    return type;
  }
  type.width_bytes = is_timestamp(type.format) ? 8 : parsed_width(type.format);
  if (type.width_bytes > 0 && schema.n_children == 0) return type;
  return refuse("of type " + type_name(type.format), remedy(type.format));
}

std::string type_name(const std::string& format) {
  if (const Known* const known = find_known(format)) return std::string(known->name);
  if (is_timestamp(format)) {
    const std::string unit = format[2] == 's' ? "s" : std::string(1, format[2]) + "s";
    const std::string zone = format.substr(4);
    return "timestamp[" + unit + (zone.empty() ? "" : ", " + zone) + "]";
  }
  if (format == "vu") return "string_view";
  if (format == "vz") return "binary_view";
  if (format == "n") return "null";
  if (format == "+s") return "struct";
  if (format == "+l" || format == "+L" || format == "+vl" || format == "+vL") return "list";
  if (format == "+m") return "map";
  if (format == "+r") return "run_end_encoded";
  if (format.starts_with("+u")) return "union";
  if (format.starts_with("+w:")) return "fixed_size_list";
  if (format.starts_with("w:")) return "fixed_size_binary[" + format.substr(2) + "]";
  if (format.starts_with("d:")) return "decimal(" + format.substr(2) + ")";
  return "'" + format + "'";
}

bool comparable(const ColumnType& left, const ColumnType& right) {
  if (left.has_bytes() && right.has_bytes()) {
    const auto is_text = [](const ColumnType& type) {
      return type.format == "u" || type.format == "U";
    };
    return is_text(left) == is_text(right);
  }
  return left.format == right.format;
}

}  // namespace verbena::join_app
