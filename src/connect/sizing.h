// How deep the queues of a connection are, from what the user wants and the device can; pure.
#pragma once

#include <cstdint>

#include "src/channel/receive_pool.h"
#include "src/channel/send_queue.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::connect {

// A send queue for `pending` messages of so many work requests at once. Deep enough that posting
// never has to wait for a completion of this interval: pending + signal_interval WQEs.
// `signal_interval` 0: a quarter of the depth. kLimitExceeded if the device's queue pairs are not
// that deep.
Result<channel::SendQueueSizes> size_send_queue(const DeviceInfo& device, uint32_t pending,
                                                uint32_t signal_interval, uint32_t post_batch,
                                                uint32_t requests_per_message = 1);

// A receive queue for `messages` on their way at once; `depth` 0: as many receives as they need.
Result<channel::ReceivePoolSizes> size_receive_queue(uint32_t device_limit_wrs, const char* queue,
                                                     uint32_t messages, uint32_t depth,
                                                     uint32_t buffer_bytes);

// The inline limit to ask of a queue pair.
uint32_t inline_limit_bytes(const DeviceInfo& device, uint32_t wanted_bytes);

}  // namespace verbena::connect
