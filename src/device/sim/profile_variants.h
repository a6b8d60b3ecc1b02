// Variants of a profile: the same simulated RNIC where each parameter is a little other than its
// file has it. What holds over many variants does not hang on a value that nobody knows exactly.
//
// Variant 0 is the profile as given. Each further one draws every parameter anew, uniformly and
// independently of the others: an assumed one within the range that its file has, any other one
// within +-20 % of its value. The number of the variant is all that it is drawn from, so that
// "connectx3-fdr#7" is the same RNIC everywhere; a parameter that a profile gains changes no other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/device/sim/rnic_profile.h"
#include "verbena/status.h"

namespace verbena::sim {

// Between a profile's name and the number of a variant: "connectx3-fdr#7". 0 is not written.
inline constexpr char kVariantMark = '#';
inline constexpr uint32_t kMostVariants = 100;  // of one profile, the one as given included
inline constexpr double kVariantShare = 0.2;    // of a value, where there is no range

struct VariantName {
  std::string profile;
  uint32_t variant = 0;
};
// kInvalidArgument: what follows the mark is not a number from 1 to kMostVariants - 1.
Result<VariantName> parse_variant_name(std::string_view name);
// The name, or that of a device, of one of its variants.
std::string variant_name(std::string_view name, uint32_t variant);

// Whether the parameter is the same in all variants: a yes or no, a power of two, or what a program
// chooses or asks its device for.
bool is_same_in_variants(const ParameterText& parameter);
// From where to where variants have it, in its unit; both are its value where that is the same.
ValueRange variant_range(const ParameterText& parameter);
// In its unit; a whole number where the unit is a count or bytes.
double variant_value(const ParameterText& parameter, uint32_t variant);

}  // namespace verbena::sim
