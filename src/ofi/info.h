// What the provider can do, as fi_getinfo tells it.
#pragma once

#include <rdma/fabric.h>

#include <cstddef>
#include <cstdint>

namespace verbena::ofi {

inline constexpr const char* kProviderName = "verbena";
// That of the interface it may be asked for: any 2.x. What grew since 1.17 is told by the tables'
// sizes.
inline constexpr uint32_t kInterfaceVersion = FI_VERSION(2, 99);

inline constexpr uint64_t kCapabilities =
    FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_RECV | FI_READ | FI_WRITE |
    FI_REMOTE_READ | FI_REMOTE_WRITE | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE | FI_FENCE |
    FI_RMA_EVENT | FI_LOCAL_COMM | FI_REMOTE_COMM;
// Of everything, requests leave in the order in which they are posted. What is long may be
// overtaken by messages behind it, so no order of sends after reads or writes.
inline constexpr uint64_t kOrders =
    FI_ORDER_SAS | FI_ORDER_RAS | FI_ORDER_WAS | FI_ORDER_RAR | FI_ORDER_RAW | FI_ORDER_WAR |
    FI_ORDER_WAW | FI_ORDER_RMA_RAR | FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAR | FI_ORDER_RMA_WAW |
    FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
inline constexpr size_t kAtomicBytes = 896;
inline constexpr size_t kKeyBytes = 8;
inline constexpr size_t kPieces = 4;
inline constexpr size_t kInjectBytes = 1024;
inline constexpr size_t kQueueOperations = 4096;
inline constexpr size_t kMaxMessageBytes = size_t{1} << 40;
// The longest whose bytes keep the order, and the longest one-sided transfer.
inline constexpr size_t kOrderedBytes = size_t{1} << 30;
inline constexpr size_t kDataBytes = 8;

// The device of this process: VERBENA_DEVICE, or soft0.
const char* device_name();

// -FI_ENODATA if the hints ask for what there is not, or there is no such node. Has no side
// effects; a node is looked up.
int get_info(uint32_t version, const char* node, const char* service, uint64_t flags,
             const fi_info* hints, fi_info** info);

// Whether threads may call on objects of one domain at the same time.
bool needs_lock(fi_threading threading);

}  // namespace verbena::ofi
