#include "src/rpc/design_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "src/base/assert.h"

namespace verbena::rpc {
namespace {

// Messages as large as slots may be: what else is on its way, nobody knows before.
DesignWorkload responder_workload(const ResponderOptions& options) {
  DesignWorkload workload;
  workload.request_bytes = options.request_max_bytes;
  workload.response_bytes = options.response_max_bytes;
  workload.pending = options.pending;
  workload.inline_bytes = options.inline_bytes;
  workload.signal_interval = options.signal_interval;
  workload.post_batch = options.post_batch;
  workload.requesters = options.max_connections;
  return workload;
}

std::string design_name(const DesignEstimate& design) {
  if (!uses_mark_layout(design.protocol)) return protocol_name(design.protocol);
  return fmt::format("{} with {}", protocol_name(design.protocol), mark_layout_name(design.layout));
}

}  // namespace

std::string why_asked(MarkLayout asked, MarkLayout used) {
  if (asked == used) return "the options ask for it";
  return fmt::format(
      "the options ask for {}, but a device of the connection does not guarantee "
      "that the bytes of a WRITE land in order",
      mark_layout_name(asked));
}

Result<ChosenDesign> choose_design(Protocol protocol, MarkLayout layout, const DeviceInfo& device,
                                   const ResponderOptions& options) {
  VERBENA_RETURN_IF_ERROR(check_transport(protocol, options.transport));
  const bool reliable = options.transport == Transport::kRc;
  if (!reliable && protocol != Protocol::kAutomatic) {
    return ChosenDesign{protocol, MarkLayout::kImmediate, "the options ask for it"};
  }
  if (!is_automatic(protocol, layout)) {
    const MarkLayout usable = usable_layout(layout, device.writes_in_order);
    return ChosenDesign{protocol, usable,
                        why_asked(uses_mark_layout(protocol) ? layout : usable, usable)};
  }
  std::vector<DesignEstimate> candidates = estimate_designs(device, responder_workload(options));
  std::erase_if(candidates, [&](const DesignEstimate& one) {
    return (protocol == Protocol::kAutomatic ? one.protocol == Protocol::kRead
                                             : one.protocol != protocol) ||
           one.transport != options.transport ||
           (reliable && layout != MarkLayout::kAutomatic && uses_mark_layout(one.protocol) &&
            one.layout != usable_layout(layout, device.writes_in_order)) ||
           (options.transport != Transport::kUc && one.takes_receives &&
            one.receive_queues != options.receive_queues);
  });
  VERBENA_ASSERT(!candidates.empty());
  const DesignEstimate& best = candidates.front();
  if (!best.usable) return Status(StatusCode::kUnsupported, best.why);
  if (candidates.size() == 1) {
    return ChosenDesign{
        best.protocol, best.layout,
        fmt::format("automatic: the one design over {}", transport_name(options.transport))};
  }
  const auto usable = std::count_if(candidates.begin(), candidates.end(),
                                    [](const DesignEstimate& one) { return one.usable; });
  ChosenDesign chosen{best.protocol, best.layout,
                      fmt::format("automatic: the cheapest of {} that can be used here", usable)};
  if (usable > 1) {
    chosen.why += fmt::format("; {} takes {:.2f} times as long", design_name(candidates[1]),
                              candidates[1].interval_ns / best.interval_ns);
  }
  return chosen;
}

DesignChoice requester_choice(const DeviceInfo& device, const DesignAgreement& agreed,
                              const SendingOptions& sending) {
  DesignWorkload workload;
  workload.request_bytes = agreed.request_max_bytes;
  workload.response_bytes = agreed.response_max_bytes;
  workload.pending = agreed.pending;
  workload.inline_bytes = sending.inline_bytes;
  workload.signal_interval = sending.signal_interval;
  workload.post_batch = sending.post_batch;
  return {estimate_design(device, workload, agreed.protocol, agreed.layout, ReceiveQueues::kShared,
                          /*dispatcher=*/false, agreed.transport),
          agreed.asked == MarkLayout::kAutomatic ? "automatic: the responder's design"
                                                 : why_asked(agreed.asked, agreed.layout)};
}

DesignChoice responder_choice(const DeviceInfo& device, const ChosenDesign& chosen,
                              const ResponderOptions& options) {
  return {estimate_design(device, responder_workload(options), chosen.protocol, chosen.layout,
                          options.receive_queues, /*dispatcher=*/false, options.transport),
          chosen.why};
}

}  // namespace verbena::rpc
