// What a result row says about one quantity, in the units of the claims.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

namespace verbena::reproduce {

// kShare: of a whole, in percent; what is missing to 100 counts as much as the number itself.
enum class Dimension { kBandwidth, kTime, kRate, kShare, kPlain };

struct Metric {
  std::string_view name;  // in check files
  Dimension dimension;
  // In bytes/s, ns, 1/s, percent or as it is; nothing where the run did not measure it.
  std::optional<double> (*read)(const nlohmann::json& row);
};

std::span<const Metric> metrics();
// Null if there is none.
const Metric* find_metric(std::string_view name);

// How many of `unit` ("Gbps", "MB/s", "us", …) one of the dimension is; nothing where it does not
// measure that dimension. Units of counts, and none, are those of plain numbers.
std::optional<double> in_unit(Dimension dimension, std::string_view unit);
// Where a claim names no unit.
std::string_view usual_unit(Dimension dimension);

}  // namespace verbena::reproduce
