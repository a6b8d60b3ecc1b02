#include "src/base/network_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

namespace verbena {
namespace {

constexpr uint64_t kMaxLatencyNs = 10'000'000'000;
constexpr uint64_t kMaxExtraDelayNs = 60'000'000'000;
constexpr uint64_t kMaxLifeNs = 86'400'000'000'000;
constexpr uint64_t kMinRateBitsPerS = 1'000;
constexpr uint64_t kMaxRateBitsPerS = 1'000'000'000'000'000;

struct NamedUnit {
  std::string_view name;
  uint64_t amount;
};
constexpr NamedUnit kDurationUnits[] = {
    {"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}};
constexpr NamedUnit kRateUnits[] = {{"bps", 1},
                                    {"kbps", 1'000},
                                    {"Mbps", 1'000'000},
                                    {"Gbps", 1'000'000'000},
                                    {"Tbps", 1'000'000'000'000}};

// What a value is told about when it is wrong.
struct Part {
  std::string_view text;     // the whole part, "drop=2"
  std::string_view value;    // behind the '='
  std::string_view example;  // of all parts
};

Status wrong_part(const Part& part, std::string_view why) {
  return {StatusCode::kInvalidArgument,
          fmt::format("'{}': {}; an example: {}", part.text.substr(0, 64), why, part.example)};
}

// The number at the start of `text`, which it is taken off. The same for every locale.
template <typename Number>
bool take_number_off(std::string_view& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

Status take_probability(const Part& part, std::string_view value, double& probability) {
  double number = 0;
  if (!take_number_off(value, number) || !value.empty() || !(number >= 0 && number <= 1)) {
    return wrong_part(part, "a probability is a number from 0 to 1");
  }
  probability = number;
  return {};
}

// A number with one of these units, from `least` to `most` of the smallest.
template <size_t kCount>
bool take_amount(std::string_view value, const NamedUnit (&units)[kCount], uint64_t least,
                 uint64_t most, uint64_t& amount) {
  double number = 0;
  if (!take_number_off(value, number)) return false;
  for (const NamedUnit& unit : units) {
    if (value != unit.name) continue;
    const double exact = number * static_cast<double>(unit.amount);
    if (!(exact >= static_cast<double>(least) && exact <= static_cast<double>(most))) return false;
    amount = static_cast<uint64_t>(std::llround(exact));
    return true;
  }
  return false;
}

Status take_delay(const Part& part, FaultSettings& settings) {
  const size_t colon = part.value.find(':');
  double probability = 1;
  if (colon != part.value.npos) {
    if (Status status = take_probability(part, part.value.substr(0, colon), probability);
        !status.ok()) {
      return status;
    }
  }
  const std::string_view longest =
      colon == part.value.npos ? part.value : part.value.substr(colon + 1);
  if (!take_amount(longest, kDurationUnits, 1, kMaxExtraDelayNs, settings.longest_delay_ns)) {
    return wrong_part(part,
                      "a delay is the longest one, 1ns to 60s (ns, us, ms or s), behind its "
                      "probability and a colon unless each operation has one");
  }
  settings.delay = probability;
  return {};
}

Status take_end(const Part& part, FaultSettings& settings) {
  if (take_amount(part.value, kDurationUnits, 1, kMaxLifeNs, settings.kill_after_ns)) return {};
  std::string_view value = part.value;
  if (take_number_off(value, settings.kill_after_requests) && value.empty() &&
      settings.kill_after_requests > 0) {
    return {};
  }
  return wrong_part(part,
                    "the end comes after a number of work requests from 1 on, or after a time of "
                    "1ns to 86400s (ns, us, ms or s)");
}

Status take_fault(const Part& part, std::string_view name, FaultSettings& settings) {
  if (name == "drop") return take_probability(part, part.value, settings.drop);
  if (name == "rnr") return take_probability(part, part.value, settings.rnr);
  if (name == "delay") return take_delay(part, settings);
  if (name == "qp-error") return take_probability(part, part.value, settings.queue_pair_error);
  if (name == "kill-after") return take_end(part, settings);
  if (name == "seed") {
    std::string_view value = part.value;
    const bool number = take_number_off(value, settings.seed) && value.empty();
    return number ? Status() : wrong_part(part, "the seed is a decimal number below 2^64");
  }
  return wrong_part(part, "the faults are drop, rnr, delay, qp-error, kill-after and seed");
}

Status take_link(const Part& part, std::string_view name, LinkSettings& settings) {
  if (name == "latency") {
    return take_amount(part.value, kDurationUnits, 0, kMaxLatencyNs, settings.latency_ns)
               ? Status()
               : wrong_part(part, "a latency, of one way, is 0ns to 10s (ns, us, ms or s)");
  }
  if (name == "rate") {
    return take_amount(part.value, kRateUnits, kMinRateBitsPerS, kMaxRateBitsPerS,
                       settings.rate_bits_per_s)
               ? Status()
               : wrong_part(part,
                            "a rate is 1kbps to 1000Tbps, in bits (bps, kbps, Mbps, Gbps or Tbps)");
  }
  return wrong_part(part, "a link has a latency and a rate");
}

template <typename Settings>
Result<Settings> parse_parts(std::string_view text, std::string_view example,
                             Status (*take)(const Part&, std::string_view, Settings&)) {
  Settings settings;
  std::set<std::string_view> given;
  while (!text.empty()) {
    const std::string_view part_text = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part_text.size() + 1));
    const size_t equals = part_text.find('=');
    const std::string_view name = part_text.substr(0, equals);
    const Part part{part_text, equals == part_text.npos ? "" : part_text.substr(equals + 1),
                    example};
    if (!given.insert(name).second) return wrong_part(part, "it is given twice");
    VERBENA_RETURN_IF_ERROR(take(part, name, settings));
  }
  return settings;
}

}  // namespace

Result<FaultSettings> parse_fault_settings(std::string_view text) {
  return parse_parts<FaultSettings>(
      text, "drop=1e-3,rnr=0.01,delay=0.01:50us,qp-error=1e-6,kill-after=5s,seed=7", take_fault);
}

Result<LinkSettings> parse_link_settings(std::string_view text) {
  return parse_parts<LinkSettings>(text, "latency=2us,rate=100Gbps", take_link);
}

}  // namespace verbena
