// Why a verb failed, in words: verbs report little more than EINVAL or ENOMEM, so what was asked is
// compared with the limits of the device, the process and the machine.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "src/device/verbs_control.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena {

// The code that fits an errno value.
StatusCode status_code_of_errno(int error);

// "`what`: the device's own explanation", else "`what`: the text of `error`".
Status verbs_error(const VerbsControl& control, std::string_view what, int error);

Status explain_open_error(const ibv_device& device, int error);
// A device that libibverbs does not list, although the kernel may have it. `known` are those it
// lists. `sysfs` is /sys, but for tests.
Status explain_unlisted_device(std::string_view name, std::string_view known,
                               const std::string& sysfs = "/sys");
// Ok if queue pairs of this device can be connected and carry immediate data.
Status check_transport(const ibv_device& device);
Status explain_registration_error(const ProtectionDomain& domain, uint64_t length_bytes,
                                  unsigned access, int error);
Status explain_completion_queue_error(const Device& device, const CompletionQueueOptions& options,
                                      int error);
Status explain_shared_receive_queue_error(const ProtectionDomain& domain,
                                          const SharedReceiveQueueOptions& options, int error);
Status explain_queue_pair_error(const ProtectionDomain& domain, const QueuePairOptions& options,
                                int error);

// What the kernel lets this process pin.
struct LockedMemory {
  uint64_t limit_bytes = 0;
  bool unlimited = false;  // no limit, or the process may ignore it (CAP_IPC_LOCK)
  uint64_t pinned_bytes = 0;
};
LockedMemory locked_memory();

// The line that blames the locked-memory limit for a refused registration; empty if it cannot be
// the cause.
std::string explain_locked_memory(const LockedMemory& memory, uint64_t length_bytes);

}  // namespace verbena
