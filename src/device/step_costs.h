// How long the steps of a message take on a device: for estimates before anything runs.
#pragma once

#include <cstdint>

#include "verbena/device.h"

namespace verbena {

// The values are those of a typical RNIC of 100 Gb/s.
struct StepCosts {
  bool of_this_device = false;  // else only order and proportion mean something

  // --- a thread's time ---
  double post_request_ns = 50;  // to build a work request
  double doorbell_ns = 75;      // for a list of them
  double entry_line_ns = 40;    // for each 64 B of a lone WQE that goes with its doorbell instead
  double entry_lock_ns = 0;     // around such a WQE
  uint32_t entry_max_bytes = 256;  // the largest such WQE; 0: none does
  bool entry_only_inline = false;  // only WQEs with their payload inside
  double post_receive_ns = 30;
  double post_shared_receive_ns = 160;
  double poll_memory_ns = 6;  // an empty poll of a slot
  double poll_queue_ns = 15;  // of a completion queue
  double completion_ns = 100;
  double device_line_ns = 22;  // the first load of a line that the device wrote
  double message_ns = 60;      // to take a message that was found
  double byte_ns = 0.1;        // to copy or clear a byte
  double hand_over_ns = 70;    // of a line to another core
  bool moves_payload = false;  // the thread that posts moves the payload: a software RNIC

  // --- registration of memory, by a thread ---
  double registration_ns = 20000;     // besides its pages
  double registration_page_ns = 100;  // for each page of 4 KiB
  double region_check_ns = 0;         // to know that one that peers reach is of the same memory
  // Of memory that is left in place (MemoryRegion::create_in_place()): to register any amount, 0
  // where there is no such way; and what a peer's READ then costs more.
  double in_place_registration_ns = 0;
  double in_place_use_ns = 0;
  double in_place_byte_ns = 0;

  // --- RNIC and bus ---
  double bus_one_way_ns = 375;
  double bus_read_ns = 420;
  double bus_byte_ns = 0.09;
  double send_packet_ns = 10;
  double send_64_ns = 1.5;
  double receive_packet_ns = 9;
  double receive_64_ns = 1;
  double take_receive_ns = 5;
  double write_gap_ns = 110;     // from one message of a queue pair to its next
  double read_gap_ns = 110;      // from one READ to the next
  double gather_entry_ns = 30;   // for each further entry of a gather list
  double fetch_ahead_bytes = 0;  // payload that a queue pair has fetched before it is sent; 0: any

  // --- network ---
  double path_ns = 110;
  double link_byte_ns = 0.08;
  double packet_overhead_bytes = 22;
};

// Control path: reads the profile of a simulated device.
StepCosts step_costs(const DeviceInfo& device);

}  // namespace verbena
