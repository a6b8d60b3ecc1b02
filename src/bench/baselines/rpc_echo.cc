#include "src/bench/baselines/rpc_echo.h"

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/rpc/designs.h"
#include "src/rpc/requester_control.h"
#include "verbena/connection.h"
#include "verbena/device.h"

namespace verbena::bench::baselines {

namespace {

template <typename Design>
Status serve(const Device& device, const ProtectionDomain& domain, ControlConnection& control,
             const EchoPlan& plan) {
  ResponderOptions options;
  options.request_max_bytes = options.response_max_bytes = plan.bytes;
  options.pending = plan.pending;
  VERBENA_ASSIGN_OR_RETURN(auto responder, Design::Responder::create(device, domain, options));
  VERBENA_RETURN_IF_ERROR(responder->connect(control));
  const auto echo = [](const Request& request, std::span<char> response) {
    std::memcpy(response.data(), request.bytes.data(), request.bytes.size());
    return static_cast<uint32_t>(request.bytes.size());
  };
  Waiter waiter;
  while (responder->status().ok()) responder->poll(echo) > 0 ? waiter.progress() : waiter.idle();
  return Status::ok_status();  // the requester is done, or says itself why not
}

template <typename Design>
Status request(Side& side, const Device& device, const ProtectionDomain& domain,
               ControlConnection& control, const EchoPlan& plan) {
  RequesterOptions options;
  options.request_max_bytes = options.response_max_bytes = plan.bytes;
  options.pending = plan.pending;
  VERBENA_ASSIGN_OR_RETURN(auto requester,
                           Design::Requester::create(device, domain, control, options));
  // Slots that are free, a ring: those whose responses came first are posted first.
  std::vector<uint32_t> free(plan.pending);
  for (uint32_t slot = 0; slot < plan.pending; ++slot) {
    std::memset(requester->request_buffer(slot), 'v', plan.bytes);
    free[slot] = slot;
  }
  uint32_t first = 0;
  uint32_t last = 0;
  const auto behind = [&plan](uint32_t at) { return at + 1 == plan.pending ? 0 : at + 1; };
  Waiter waiter;
  return request_echoes(
      side, plan,
      [&] {
        if (requester->try_post(free[first], plan.bytes) != PostResult::kPosted) return false;
        first = behind(first);
        return true;
      },
      [&]() -> int64_t {
        const uint32_t found = requester->poll([&](uint32_t slot, std::span<const char>) {
          free[last] = slot;
          last = behind(last);
        });
        if (found > 0) [[likely]] {
          waiter.progress();
          return found;
        }
        waiter.idle();
        return requester->status().ok() ? 0 : -1;
      });
}

}  // namespace

Result<double> rpc_echo(const CpuPair& cpus, Protocol protocol, const EchoPlan& plan) {
  return run_connected_pair(cpus, [&](const ConnectedSide& own) -> Status {
    return rpc::with_design_point(protocol, MarkLayout::kLastBit, [&]<typename Design>() -> Status {
      if constexpr (rpc::ChannelPair<Design>) {
        return own.side.number() == 0
                   ? request<Design>(own.side, own.device, own.domain, own.control, plan)
                   : serve<Design>(own.device, own.domain, own.control, plan);
      }
      return Status(StatusCode::kInvalidArgument, "READ has no responder that could echo");
    });
  });
}

}  // namespace verbena::bench::baselines
