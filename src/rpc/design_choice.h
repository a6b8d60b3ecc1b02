// Which design a responder takes that was left the choice, and what both sides tell about theirs.
// Control path.
#pragma once

#include <string>

#include "src/rpc/negotiation.h"
#include "verbena/design_estimate.h"
#include "verbena/device.h"
#include "verbena/rpc.h"

namespace verbena::rpc {

// Whether a choice is left open; protocols without a WRITE half have no layout to choose.
inline bool is_automatic(Protocol protocol, MarkLayout layout) {
  return protocol == Protocol::kAutomatic ||
         (layout == MarkLayout::kAutomatic && uses_mark_layout(protocol));
}

// For a layout that the options named, and what became of it.
std::string why_asked(MarkLayout asked, MarkLayout used);

struct ChosenDesign {
  Protocol protocol = Protocol::kWriteWrite;
  MarkLayout layout = MarkLayout::kLastBit;
  std::string why;
};

// The responder's. What is not kAutomatic is taken as it is, but for layouts that the device rules
// out.
Result<ChosenDesign> choose_design(Protocol protocol, MarkLayout layout, const DeviceInfo& device,
                                   const ResponderOptions& options);

// What a requester's options say of its sends, beside what it agreed on.
struct SendingOptions {
  uint32_t inline_bytes = kDeviceInlineLimit;
  uint32_t signal_interval = 0;
  uint32_t post_batch = 1;
};

// What Requester::design() and Responder::design() return.
DesignChoice requester_choice(const DeviceInfo& device, const DesignAgreement& agreed,
                              const SendingOptions& sending);
DesignChoice responder_choice(const DeviceInfo& device, const ChosenDesign& chosen,
                              const ResponderOptions& options);

}  // namespace verbena::rpc
