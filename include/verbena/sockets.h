// The sockets of this machine: which processors and which memory are near to each other, and to an
// RNIC ("memsem" II-B4, III-D).
//
//   const int socket = socket_of(device);            // where the RNIC is attached
//   if (socket >= 0) run_on_socket(socket);          // this thread, from now on
//   place_on_socket(buffer, bytes, socket);          // memory of the program's own
//
// Memory that the library registers lies on the socket of its device by itself, where that socket
// is known; ExposedRegionOptions::socket has another one. The first such memory that could not be
// placed is told in one line of the log.
//
// A machine with one socket can be used as one with several: VERBENA_SOCKETS=2 in the environment
// declares two, each of which has a part of the processors that the process may use. Memory of
// declared sockets is not placed, since the machine has but one kind. For tests, and to learn.
//
// In a simulation a node has the sockets of its profile. Threads fill the cores of the first one,
// then of the next, unless they say where they run; memory of the program's own lies on the socket
// of the thread that registers it, unless it was placed before. Placing lasts until the memory is
// deregistered.
//
// All of it is control path, and may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena {

// A socket that is not known, or does not matter. Where memory is made: the socket of its device,
// or if that is not known, of the thread that touches it first.
inline constexpr int kAnySocket = -1;

struct Socket {
  // That this process may use, in the order in which to hand them out. Empty: none of the
  // socket's.
  std::vector<int> cpus;
  // Of its memory. Empty: it is declared, or the machine does not tell.
  std::vector<int> numa_nodes;
};

// At least one. Found out once per process, which takes milliseconds. A value of VERBENA_SOCKETS
// that is not 1 to 64 is told in the log and means nothing.
const std::vector<Socket>& machine_sockets();

// The socket that an RNIC is attached to, as the system or the simulation says. kAnySocket for
// soft0, which every processor reaches in the same way, with declared sockets, and where the system
// does not say.
int socket_of(const Device& device);
// The socket on which all of these pages really are; kAnySocket if they are on several, were never
// touched, or it is not known. A system call for each 512 pages or so.
int socket_of_memory(const void* memory, size_t bytes);

// The pages of this memory (those that it shares with other memory, too) are from now on made on
// that socket, and those that are elsewhere are moved. Where its memory is full, the system takes
// another socket's. Nothing happens on a machine with one socket, and for kAnySocket.
//   kInvalidArgument  there is no such socket
//   kUnsupported      the system refuses, or could not move the pages: why
Status place_on_socket(void* memory, size_t bytes, int socket);

// The calling thread runs on the processors of that socket from now on.
//   kInvalidArgument  there is no such socket
//   kUnavailable      the process may use none of its processors
Status run_on_socket(int socket);

}  // namespace verbena
