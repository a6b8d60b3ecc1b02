#include "src/message/buffer_reuse.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/log.h"
#include "src/memory/reuse_measurement.h"

namespace verbena::message {
namespace {

constexpr uint64_t kMostSteps = 1024;
constexpr uint64_t kStepOfSizes = 64;

// The smallest size that pays at all.
uint64_t least_that_pays(const ReuseThresholds& thresholds) {
  for (uint64_t bytes = 1; bytes <= kMostSteps * kStepOfSizes; bytes += kStepOfSizes) {
    // A step is as its largest size.
    const auto size = static_cast<uint32_t>(bytes + kStepOfSizes - 1);
    if (thresholds.least_reuses(size) == kNeverPays) continue;
    return thresholds.least_reuses(static_cast<uint32_t>(bytes)) != kNeverPays ? bytes : size;
  }
  return ~uint64_t{0};
}

}  // namespace

Status BufferReuse::open(const MessengerOptions& options, const StepCosts& steps,
                         uint32_t least_bytes, unsigned access, MessageMemory& memory) {
  if (options.reused_buffers == ReusedBuffers::kCopied) return Status::ok_status();
  const auto index =
      options.reuse_index == ReusedIndex::kHash ? BufferUseIndex::kHash : BufferUseIndex::kTree;
  access_ = access;
  measured_ = options.reused_buffers == ReusedBuffers::kMeasured;
  adapts_ = options.reuse_adapts;
  if (measured_) {
    VERBENA_ASSIGN_OR_RETURN(costs_, measure_reuse_costs(memory.cache(), access, index));
    // What else a message costs that is not copied: two further entries of its gather list, and a
    // completion of its own.
    costs_.overhead_ns += 2 * steps.gather_entry_ns + steps.completion_ns;
    thresholds_[0] = ReuseThresholds::from_costs(costs_, least_bytes);
    least_bytes_ = std::max<uint64_t>(least_bytes, least_that_pays(thresholds_[0]));
  } else {
    for (const ReusePath path :
         {ReusePath::kEagerWrite, ReusePath::kEagerSend, ReusePath::kOneSided}) {
      thresholds_[static_cast<uint32_t>(path)] = ReuseThresholds::of_paper(path);
      least_bytes_ =
          std::min(least_bytes_, least_that_pays(thresholds_[static_cast<uint32_t>(path)]));
    }
    least_bytes_ = std::max<uint64_t>(least_bytes_, least_bytes);
  }
  VERBENA_ASSIGN_OR_RETURN(
      table_, BufferUseTable::create(thresholds_[0], {.index = index,
                                                      .max_buffers = options.reuse_buffers,
                                                      .speculation = options.reuse_speculation,
                                                      .adapts = options.reuse_adapts}));
  return Status::ok_status();
}

internal::CachedRegion* BufferReuse::take(MessageMemory& memory, const void* buffer, uint32_t bytes,
                                          ReusePath path) {
  const BufferUse use = table_->count(buffer, bytes, thresholds(path));
  if (use.reuses == 0 && use.way == BufferUse::Way::kCopy) {
    // Of a buffer that was not used before, or that the table does not take.
    if (++unknown_ >= kUnknownInARow && resting_ == 0 && adapts_) {
      resting_ = kRest;
      unknown_ = kUnknownInARow;  // if that goes on to the end of the rest, the next one begins
    }
    return nullptr;
  }
  unknown_ = resting_ = 0;
  switch (use.way) {
    case BufferUse::Way::kCopy:
      break;
    case BufferUse::Way::kRegister: {
      internal::CachedRegion* const region = memory.take(buffer, bytes, access_);
      region != nullptr ? table_->registered(use) : table_->refused(use);
      return region;
    }
    case BufferUse::Way::kInPlace: {
      internal::CachedRegion* const region = memory.lookup().find(buffer, bytes, access_).detach();
      if (region == nullptr) table_->lost(use);
      return region;
    }
  }
  return nullptr;
}

std::string BufferReuse::explain(const void* buffer, uint64_t bytes, ReusePath path,
                                 bool* in_place) {
  *in_place = false;
  if (!is_open()) return "the option reused_buffers asks for copies";
  if (bytes < least_bytes_) {
    return least_bytes_ == ~uint64_t{0}
               ? "a copy of any size costs less than to look for a registration"
               : fmt::format("below {} bytes a copy costs less than to look for a registration",
                             least_bytes_);
  }
  const auto size = static_cast<uint32_t>(bytes);
  const uint32_t least = thresholds(path).least_reuses(size);
  std::string why = fmt::format("a registration pays after {} reuses", least);
  if (least == kNeverPays) why = "a registration never pays";
  if (measured_) {
    const ReuseCosts costs = costs_.of(size);
    why += fmt::format(" (measured: it takes {:.1f} us, a copy {:.0f} ns, a look-up {:.0f} ns)",
                       costs.registration_ns / 1000, costs.copy_ns, costs.overhead_ns);
  } else {
    why += fmt::format(" (the paper's table, {})", reuse_path_name(path));
  }
  if (buffer == nullptr) return why;
  const BufferUse use = table_->look(buffer, size, thresholds(path));
  *in_place = use.way != BufferUse::Way::kCopy;
  return BufferUseTable::explain(use) + "; " + why;
}

}  // namespace verbena::message
