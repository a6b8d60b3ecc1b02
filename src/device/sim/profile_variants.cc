#include "src/device/sim/profile_variants.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/base/runtime.h"

namespace verbena::sim {

namespace {

// What is known exactly: the machines and settings of an experiment, what verbs report of a device,
// and powers of two. Others would make points impossible and not uncertain.
constexpr std::string_view kKnownExactly[] = {"cores",
                                              "sockets",
                                              "pcie_payload",
                                              "mtu",
                                              "page",
                                              "max_inline",
                                              "max_inline_datagram",
                                              "datagram_address",
                                              "max_outstanding_reads"};

bool is_whole(const ParameterText& parameter) {
  return parameter.unit == "count" || parameter.unit == "B";
}

// FNV-1a: each parameter has a random sequence of its own.
uint64_t hash_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  }
  return hash;
}

// Uniform in [0, 1].
double draw_share(std::string_view name, uint32_t variant) {
  constexpr uint64_t kSteps = uint64_t{1} << 32;
  Random random(hash_of(name) ^ (uint64_t{variant} << 32));
  return static_cast<double>(random.below(kSteps + 1)) / static_cast<double>(kSteps);
}

}  // namespace

Result<VariantName> parse_variant_name(std::string_view name) {
  const size_t mark = name.find(kVariantMark);
  if (mark == std::string_view::npos) return VariantName{.profile = std::string(name)};
  VariantName parsed{.profile = std::string(name.substr(0, mark))};
  const std::string_view number = name.substr(mark + 1);
  const char* const end = number.data() + number.size();
  const auto [stop, error] = std::from_chars(number.data(), end, parsed.variant);
  if (error == std::errc() && stop == end && parsed.variant > 0 && parsed.variant < kMostVariants) {
    return parsed;
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("'{}' is no variant of {}: there are {}1 to {}{}; leave it out for the "
                            "profile as it is",
                            name.substr(mark), parsed.profile, kVariantMark, kVariantMark,
                            kMostVariants - 1));
}

std::string variant_name(std::string_view name, uint32_t variant) {
  return variant == 0 ? std::string(name) : fmt::format("{}{}{}", name, kVariantMark, variant);
}

bool is_same_in_variants(const ParameterText& parameter) {
  return parameter.unit == "yes/no" || std::find(std::begin(kKnownExactly), std::end(kKnownExactly),
                                                 parameter.name) != std::end(kKnownExactly);
}

ValueRange variant_range(const ParameterText& parameter) {
  if (is_same_in_variants(parameter)) return {parameter.number, parameter.number};
  const ValueRange drawn =
      parameter.range.value_or(ValueRange{.least = parameter.number * (1 - kVariantShare),
                                          .most = parameter.number * (1 + kVariantShare)});
  if (!is_whole(parameter)) return drawn;
  // Of a small number the nearest one counts; what there is does not vanish, and 0 stays 0.
  const double least = parameter.number > 0 ? 1 : 0;
  return {std::max(std::round(drawn.least), least), std::max(std::round(drawn.most), least)};
}

double variant_value(const ParameterText& parameter, uint32_t variant) {
  if (variant == 0 || is_same_in_variants(parameter)) return parameter.number;
  const ValueRange range = variant_range(parameter);
  const double value =
      range.least + (range.most - range.least) * draw_share(parameter.name, variant);
  return is_whole(parameter) ? std::round(value) : value;
}

}  // namespace verbena::sim
