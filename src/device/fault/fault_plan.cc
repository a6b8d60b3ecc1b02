// Fault plans as text.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "verbena/fault.h"

namespace verbena {
namespace {

constexpr const char* kVariable = "VERBENA_FAULTS";
constexpr uint64_t kMaxDurationNs = 3'600'000'000'000;

struct Unit {
  const char* name;
  uint64_t ns;
};
// From small to large: text() takes the largest that fits.
constexpr Unit kUnits[] = {{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}};

Status wrong(std::string_view part, std::string_view why) {
  return {StatusCode::kInvalidArgument,
          fmt::format("'{}' is not a fault: {}; write seed=7,delay=0.01:50us,rnr=0.001:1ms,"
                      "completion_delay=0.01:20us,queue_pair_error=1e-6, or some of these",
                      part.substr(0, 64), why)};
}

// The number at the start of `text`, which it is taken off. The same for every locale.
template <typename Number>
bool take_number(std::string_view& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

Status take_probability(std::string_view part, std::string_view& text, double& probability) {
  if (!take_number(text, probability) || !(probability >= 0 && probability <= 1)) {
    return wrong(part, "its probability must be a number from 0 to 1");
  }
  return {};
}

Status parse_fault(std::string_view part, std::string_view text, Fault& fault) {
  VERBENA_RETURN_IF_ERROR(take_probability(part, text, fault.probability));
  double amount = 0;
  if (text.empty() || text.front() != ':') {
    return wrong(part, "it needs a probability, a colon and a duration");
  }
  text.remove_prefix(1);
  if (take_number(text, amount)) {
    for (const Unit& unit : kUnits) {
      if (text != unit.name) continue;
      const double duration_ns = amount * static_cast<double>(unit.ns);
      if (!(duration_ns >= 0 && duration_ns <= static_cast<double>(kMaxDurationNs))) break;
      fault.duration_ns = static_cast<uint64_t>(std::llround(duration_ns));
      return {};
    }
  }
  return wrong(part, "its duration must be at most an hour, in ns, us, ms or s");
}

Status parse_part(std::string_view part, FaultPlan& plan) {
  const size_t equals = part.find('=');
  const std::string_view name = part.substr(0, equals);
  std::string_view value = equals == part.npos ? "" : part.substr(equals + 1);
  if (name == "delay") return parse_fault(part, value, plan.delay);
  if (name == "rnr") return parse_fault(part, value, plan.rnr);
  if (name == "completion_delay") return parse_fault(part, value, plan.completion_delay);
  if (name == "queue_pair_error") {
    VERBENA_RETURN_IF_ERROR(take_probability(part, value, plan.queue_pair_error));
    return value.empty() ? Status() : wrong(part, "it takes a probability and nothing else");
  }
  if (name == "seed") {
    const bool number = take_number(value, plan.seed) && value.empty();
    return number ? Status() : wrong(part, "the seed must be a decimal number below 2^64");
  }
  return wrong(part, "the faults are seed, delay, rnr, completion_delay and queue_pair_error");
}

std::string text_of(const char* name, const Fault& fault) {
  if (fault.probability == 0) return "";
  const Unit* unit = kUnits;
  for (const Unit& larger : kUnits) {
    if (fault.duration_ns != 0 && fault.duration_ns % larger.ns == 0) unit = &larger;
  }
  return fmt::format(",{}={}:{}{}", name, fault.probability, fault.duration_ns / unit->ns,
                     unit->name);
}

}  // namespace

Result<FaultPlan> FaultPlan::parse(std::string_view text) {
  FaultPlan plan;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    VERBENA_RETURN_IF_ERROR(parse_part(text.substr(0, comma), plan));
    text = comma == text.npos ? "" : text.substr(comma + 1);
  }
  return plan;
}

Result<std::optional<FaultPlan>> FaultPlan::from_environment() {
  const char* text = std::getenv(kVariable);
  if (text == nullptr || *text == '\0') return std::optional<FaultPlan>();
  Result<FaultPlan> plan = parse(text);
  if (!plan.ok()) {
    return Status(plan.status().code(), fmt::format("{}: {}", kVariable, plan.status().message()));
  }
  return std::optional<FaultPlan>(*plan);
}

std::string FaultPlan::text() const {
  std::string text = fmt::format("seed={}", seed);
  text += text_of("delay", delay);
  text += text_of("rnr", rnr);
  text += text_of("completion_delay", completion_delay);
  if (queue_pair_error != 0) text += fmt::format(",queue_pair_error={}", queue_pair_error);
  return text;
}

}  // namespace verbena
